"""Model files and the models themselves: checkpoints (GGUF, Hugging Face folders), their configuration, the network.

Nothing here knows about steps, rows or the engine's messages: that is ``plugins/executors``.
"""

from __future__ import annotations
