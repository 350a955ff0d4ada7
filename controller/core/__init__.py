"""Pure decisions: plain values in, a Decision out. No clock, no I/O, no log, no random; a contract test holds that."""
