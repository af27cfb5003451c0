"""What a training run will need: memory, time, money and risk, before it starts."""
