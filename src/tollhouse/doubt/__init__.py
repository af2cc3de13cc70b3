"""What ends a doubt: look-ups, resends, people, compensation."""
