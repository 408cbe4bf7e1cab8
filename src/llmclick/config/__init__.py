"""Reading and explaining a config. `load.load_config` is the way in."""
