"""What every part stands on: errors, typed configuration, artifacts, executors, documents, progress."""
