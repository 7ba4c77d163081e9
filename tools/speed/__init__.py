"""What the tools that measure speed share."""
