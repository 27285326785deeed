"""Use an encoder: classify and tag texts, answer questions, fill masks, embed sentences. One file per task."""
