"""The program's own files and manners: settings, paths, refusals, clipboard."""
