"""The worst case of a verified program in milliseconds on this machine.

work         what each value computes, by shape arithmetic alone
operands     inputs for which operators are slow
measurement  times operators on these inputs
torch_engine the operators of the runtime
cache        prices on disk, for later processes
prices       the prices of this machine
limits       the milliseconds of a program, and their limit
"""
