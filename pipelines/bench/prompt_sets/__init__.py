"""Sets of prompts that benches judge on."""
