/* control.cpp: tests look in here, and plan what shall fail. */
#include "standin.h"

#include <cstring>

namespace {

int planned = FAIL_NOTHING;
int passed_over; /* that still succeed */
std::string planned_name;
std::set<std::string> launched;
std::set<std::string> refused;
std::map<int, long long> questions;
long long launches, graph_launches, overtakings, handles, watched_copies;
const void *watched;

std::string plain_name(const char *name) {
  std::string text(name);
  if (!text.empty() && text[0] == '(')
    text = text.substr(1);
  return text.substr(0, text.find_first_of("<) "));
}

} // namespace

bool fails_now(failure kind, const char *name) {
  if (planned != kind || !strstr(name, planned_name.c_str()) || passed_over-- > 0)
    return false;
  planned = FAIL_NOTHING;
  return true;
}

void note_launch(const char *name) {
  launches++;
  launched.insert(plain_name(name));
}

void note_graph_launch() { graph_launches++; }
void note_overtaking() { overtakings++; }

void note_copy(const void *in_host) { watched_copies += in_host == watched; }

bool refuses_precision(const char *name) {
  guard g(standin_lock);
  return refused.count(name) > 0;
}

void note_handle(int change) {
  guard g(standin_lock);
  handles += change;
}

void note_question(int card) {
  guard g(standin_lock);
  questions[card]++;
}

extern "C" {
/* The next failure of this kind, after |skip| of them that succeed; of a launch or execution of a
 * kernel that has |name| in its name. FAIL_NOTHING undoes all. */
void standin_fail(int kind, const char *name, int skip) {
  guard g(standin_lock);
  planned = kind;
  planned_name = name;
  passed_over = skip;
  if (!kind) {
    sticky = cudaSuccess;
    cudaGetLastError();
  }
}
int standin_was_launched(const char *name) {
  guard g(standin_lock);
  return launched.count(name) > 0;
}
/* The vendor's libraries have no algorithm of this precision from now on; "" undoes all. */
void standin_refuse(const char *precision) {
  guard g(standin_lock);
  if (*precision)
    refused.insert(precision);
  else
    refused.clear();
}
/* Handles of the vendor's libraries that nobody destroyed. */
long long standin_handles() { return handles; }
/* How often somebody asked for an algorithm on a card. */
long long standin_questions(int card) {
  guard g(standin_lock);
  return questions[card];
}
/* Counts copies to a card that begin at this address on the host. */
void standin_watch(const void *from) {
  guard g(standin_lock);
  watched = from;
  watched_copies = 0;
}
long long standin_watched() { return watched_copies; }
long long standin_launches() { return launches; }
long long standin_graph_launches() { return graph_launches; }
long long standin_overtakings() { return overtakings; }
long long standin_allocated(int number) { return (long long)all_cards()[(size_t)number].used; }
/* What another library does in the calling thread: cudaSetDevice and cudaGetDevice. */
void standin_choose(int number) { cudaSetDevice(number); }
int standin_chosen() {
  int number = -1;
  cudaGetDevice(&number);
  return number;
}
/* Cards with a context, as bits. */
long long standin_contexts() {
  guard g(standin_lock);
  long long found = 0;
  for (size_t i = 0; i < all_cards().size(); i++)
    found |= (long long)all_cards()[i].context << i;
  return found;
}
/* Cards whose memory card |number| may touch, as bits. */
long long standin_peers(int number) {
  guard g(standin_lock);
  long long found = 0;
  for (int peer : all_cards()[(size_t)number].peers)
    found |= 1ll << peer;
  return found;
}
}
