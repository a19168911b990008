"""The command line: the table of commands, flag parsing, help texts, console output."""
