"""What runs inside the engine's interpreter: the standard library, `torch`, the installed `sglang`.

Everything of the engine is reached through `importlib` at run time, so that these modules can be read, linted
and packed where no engine is installed.
"""
