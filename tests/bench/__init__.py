"""What the pipeline costs, measured: `make bench`, or `make bench PART=stream`."""
