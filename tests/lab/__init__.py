"""A laboratory that runs real SGLang prefill/decode pairs on the CPU.

`LabSpec` says what to run, `Provision` gets everything it needs into a cache, and `running(spec)`
is a context manager that hands out a `Lab` (URLs, pids, logs, a cluster file). Everything runs in
a network namespace of its own; `python -m tests.lab.run` takes care of that.
"""
