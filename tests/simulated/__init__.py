"""A CUDA device played on the CPU, so that what is written for one is tried without one.

`pytest -p tests.simulated.cuda -m gpu` runs the tests of a GPU on it.

What is asked of the device is put off, as on a device: each stream is a queue of work, done when something
waits for it, or earlier as the order of the day has it. So a copy that nobody waits for comes too late, one
that nobody holds back comes too early; memory whose work is not done, or that is free again for others, holds
`POISON`. CUDA graphs are lists of work. What makes the host wait is refused where it must not
(`set_sync_debug_mode`, capture), and tensors of host and device do not mix. Triton's kernels run in its
interpreter.

`MARIUS_SIMULATED_ORDER` is the order of the day: "late" (nothing is done before it is waited for), "early"
(at once), or a number, from which it is drawn.

Not played: what a device rounds otherwise, memory that comes to an end, autograd.
"""
