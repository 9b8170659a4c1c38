"""CUDA kernels as text that NVRTC compiles at run time, and launchers that know no particular runtime.

``source`` puts the text of a unit together, ``names`` chooses the template instances of a model, ``launch`` calls them.
Whatever has the shape of CuPy's ``RawModule`` can run them: CuPy, or the CPU emulator of the tests.
"""
