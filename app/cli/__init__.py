"""What a shell types: commands, the line mode, the process that watches over the program."""
