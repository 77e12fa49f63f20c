"""The GPU report: python -m pipelines.gpu [--tiny] [--out FOLDER]."""

import os
import sys

import torch

if __name__ == "__main__":
    if "--tiny" in sys.argv and not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

    from pipelines.gpu.report import main

    main()
