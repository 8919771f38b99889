# The virtual-machine lab (tests/vm): its image and its tests. Included by the Makefile.

.PHONY: lab test-vm vm-scenarios lab-clean

lab:  ## build the lab's machine when stale (needs root; installs qemu and debootstrap when missing)
	tests/vm/build_image.sh

test-vm: lab vm-scenarios  ## the scenarios that need systemd, cgroup v2 and sessions

vm-scenarios:  ## one machine at a time: two emulated ones on two processors starve each other
	$(SUITE) tests/vm -m "vm and not long"

lab-clean:  ## the image, the downloaded packages, everything
	rm -rf .lab
