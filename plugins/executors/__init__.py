"""Execution backends: they turn one ``StepLaunch`` into one ``StepResult``, on a thread of their own."""

from __future__ import annotations

import os

# Read by the OpenMP runtime when torch is first imported.  Idle workers then sleep instead of spinning: beside a busy
# event loop, or any other process on the same cores, spinning makes every barrier wait out a scheduler's time slice.
# Measured with a foreign load on both of two cores: 65 instead of 296 ms for a decode step of one row.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# GNU's runtime may spin for some microseconds first, which a step of 150 short parallel regions needs: measured on the
# two quiet cores 39 ms a step, 67 when they sleep at once, 45 when they spin for as long as it takes.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
