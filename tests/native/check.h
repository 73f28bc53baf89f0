/* check.h: the least that a test program in C needs. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>

static int failures;

/* Says where, and goes on: the other checks are wanted too. */
#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      failures++;                                                                                  \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                    \
    }                                                                                              \
  } while (0)

#define CHECK_TEXT(text, fragment)                                                                 \
  do {                                                                                             \
    if (!strstr(text, fragment)) {                                                                 \
      failures++;                                                                                  \
      fprintf(stderr, "%s:%d: expected '%s' in '%s'\n", __FILE__, __LINE__, fragment, text);       \
    }                                                                                              \
  } while (0)

#endif
