"""Pure decisions: functions of values. No I/O, no clock, no randomness, no logging, no environment."""
