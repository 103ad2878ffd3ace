"""Pods of many daemons in virtual time: hit rate, load and recovery as they grow."""
