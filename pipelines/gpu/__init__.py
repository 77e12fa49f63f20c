"""Report on the GPU runtime."""
