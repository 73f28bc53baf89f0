"""Rules of ops that are graphs of their own or shared: bodies, cells, operators of values, types of integers."""
