"""Runs programs on a CPU as compiled C++: one pass over a row for each phase between reductions.

nodes      a program as elementwise operations and reductions; refuses programs with other operators
phases     which nodes each pass over a row computes
functions  C++ of exp, log, tanh and others, which compilers vectorize
source     the C++ of a program
compiler   the compiler of this machine, and its options
native     the loaded function
cache      shared objects on disk, which no other user can change
check      compares a compiled program with the interpreter
build      the process that compiles, checks and stores
fusing     starts builds, and has the functions that are ready
"""
