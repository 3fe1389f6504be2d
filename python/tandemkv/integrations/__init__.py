"""tandemkv under engines of other projects; each package here needs the extra named for it."""
