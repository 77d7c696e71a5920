"""Exchange: the programs that devices and coordinators run, and the rules by which updates merge."""
