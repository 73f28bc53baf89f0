/* assume.h: what holds at a line, stated for those who check it.
 *
 * DF_ASSUME(x) says that |x| holds where a file alone doesn't show it: a caller in another file, a
 * check at load time or the shape rule of the op sees to it. Static analyzers take it as given,
 * builds with the address sanitizer stop where it doesn't hold, and in all others it is nothing, so
 * that it never changes generated code. */
#ifndef DF_CPU_ASSUME_H
#define DF_CPU_ASSUME_H

#if defined(__clang_analyzer__) || defined(DF_ANALYZE)
#define DF_ANALYZED
#define DF_ASSUME(x) ((x) ? (void)0 : __builtin_unreachable())
#elif defined(__SANITIZE_ADDRESS__)
#define DF_ASSUME(x) ((x) ? (void)0 : __builtin_trap())
#else
#define DF_ASSUME(x) ((void)0)
#endif

#endif
