"""The command line: the table of commands, how flags are read, help texts, what is printed."""
