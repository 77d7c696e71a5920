"""Report: the run folder, the figures drawn from its trace, the plots and the page."""
