"""The worst case of a verified program in milliseconds.

work    what each value computes, by shape arithmetic alone
prices  nanoseconds of operators, as constants
limits  the milliseconds of a program, and their limit
"""
