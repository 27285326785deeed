"""Text from models: sampling, beam search, translation, and the loops behind them."""
