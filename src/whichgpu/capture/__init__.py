"""Tracing a training step without a GPU. This is the only part of whichgpu that loads torch.

dynamo       keeps a slow and unneeded import of PyTorch out
hollow       tensors with a size and a storage but no memory behind them
known        small values that are followed along, so that `.item()` and the like still answer
choices      what a network chooses (top-k, argmax), taken as spread evenly
in_place     where autograd writes in place on the card, but not while a dispatch mode is on
operands     operands that CUDA refuses and hollow tensors would let pass
refusals     what is not covered, and what to do instead
operators    what a call of an operator is: names, attributes, FLOPs
outcome      what it gives, worked out on shapes
recorder     the dispatch mode that runs operators on hollow (or real) tensors and writes down what they ask for
pretend      makes an ordinary machine look like one with a GPU to the user's code
pretend_cuda what torch.cuda answers there
attention    which attention kernel CUDA would take, and what it is called with
autocast     CUDA's autocast lists, on CPU tensors
filled       operators of several that fill a new tensor where the input is
composites   other operators that CUDA splits up differently from the CPU (dropout, batch norm, RNN, ...)
threads      what the step does in other threads
stage        all of these around the import of the user's file and around its step
run          one workload at one batch size -> one Trace
worker       the process in which tracing happens (emulation patches global state)

Imports point down this list's order only: worker -> run -> stage -> pretend, attention, autocast, composites -> recorder
-> choices, outcome -> in_place, known, operators, hollow.
"""
