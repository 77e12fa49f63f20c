"""The same rounds without running the target."""
