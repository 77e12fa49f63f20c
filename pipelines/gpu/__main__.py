"""The GPU report: python -m pipelines.gpu [--tiny] [--out FOLDER]."""

from pipelines.gpu.report import main

if __name__ == "__main__":
    main()
