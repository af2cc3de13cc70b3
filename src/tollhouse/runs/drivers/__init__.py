"""Those who drive runs: ``local``, in this process over the store, and ``temporal``, for those who outgrow that."""
