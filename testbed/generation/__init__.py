"""What `scripts/generate` writes of the chart: from records and catalogs to files that people install."""
