"""The site: settings, wiring and the processes of one machine. It decides nothing about agents."""
