"""Pure decisions: functions of values. No I/O, no clock, no randomness, no logging, no environment.

By subject, from the ground up: `workload`, `gpu`, `cluster`; `packing`, and beside it `node` with `deviceplugin` on it;
`explain`. docs/architecture.md says what is where.
"""
