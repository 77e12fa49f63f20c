"""Study of when a learned tree gains over the best tree without training."""
