"""What `scripts/generate` writes of the documentation, the chart and the dashboards; what mkdocs calls for the site."""
