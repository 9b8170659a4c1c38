"""Plays scenarios on the real host, policy and allocator in virtual time, and keeps what happened."""

from .play import play as play
from .records import RequestRecord as RequestRecord
from .records import Run as Run
from .records import StepRecord as StepRecord
