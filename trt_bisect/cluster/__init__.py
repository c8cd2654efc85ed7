"""Workers on Ray clusters, or in processes of this machine."""
