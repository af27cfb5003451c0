"""How a run is laid out over processes: `config.ParallelConfig`."""
