"""This machine: sensors, the doctor, and tuning."""
