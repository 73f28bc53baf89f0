/* stream.h: streams, and the graphs that are made of what is put into them. */
#ifndef STANDIN_STREAM_H
#define STANDIN_STREAM_H
#include "standin.h"

#include <deque>
#include <memory>

typedef std::function<void()> work;

/* The value that decides about a conditional node; a launch sets it to its initial one. */
struct standin_condition {
  unsigned value, initial;
  bool assigned; /* at each launch */
  bool used;     /* a node has it */
};

/* A node of a graph, and those before it that it waits for, by their numbers. */
struct standin_node {
  size_t number;
  work what;
  std::vector<size_t> waits;
};

/* What a graph does, which a launch keeps when the graph is destroyed. */
struct standin_work {
  std::vector<std::unique_ptr<standin_node>> nodes;
  std::vector<std::shared_ptr<standin_condition>> conditions; /* those of its bodies too */
};

struct standin_graph {
  std::shared_ptr<standin_work> work;
  int card;
  bool invalid = false;             /* a call failed while it was captured */
  bool is_body = false;             /* a conditional node has it */
  bool begun = false;               /* somebody captures to it, or did */
  standin_node *apart = nullptr;    /* was added, and what comes next doesn't wait for it */
  standin_graph *outer = nullptr;   /* of a body */
  std::vector<standin_node *> ends; /* that what is put into it next waits for */
  std::vector<std::unique_ptr<standin_graph>> bodies;
  std::vector<standin_graph *> found; /* what phGraph_out points to */
};

struct standin_stream {
  std::deque<work> queue;
  standin_graph *capturing;
  int card;
};

extern thread_local int captures; /* that the calling thread has begun */
/* Puts work behind what is in the stream, or in the graph that is captured of it. */
void put(cudaStream_t stream, work what);
void add_to_graph(standin_graph *graph, work what);
/* What kernels and graphs want: the stream of the card that the thread has chosen. */
bool is_of_card(cudaStream_t stream);

#endif
