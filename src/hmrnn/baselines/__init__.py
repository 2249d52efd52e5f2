"""What the paper measures itself against: the same call and the same output type as `HMLSTM`."""

from hmrnn.baselines.clockwork import ClockworkRNN
from hmrnn.baselines.hrnn import HRNN, text_boundaries
from hmrnn.baselines.lstm import LSTM

__all__ = ["HRNN", "LSTM", "ClockworkRNN", "text_boundaries"]
