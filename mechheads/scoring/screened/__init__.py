"""Methods that patch the heads that an estimate ranks first, where patching all takes long."""
