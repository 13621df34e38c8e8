# Rscript benchmarks/export_r.R FOLDER "PACKAGE ITEM" ...: tables of R packages as FOLDER/PACKAGE.ITEM.csv.
#
# Factors and logical values are written as text, in columns whose names end in ":category"; ordered factors as numbers.
# benchmarks/export_data.py calls this and reads the files. Packages: r-cran-mlbench, -kernlab, -mclust, -th.data, -vim and
# -randomforest of Debian.

arguments <- commandArgs(trailingOnly = TRUE)
for (name in arguments[-1]) {
  parts <- strsplit(name, " ")[[1]]
  if (!requireNamespace(parts[1], quietly = TRUE)) {
    cat(sprintf("R package %s is not installed\n", parts[1]))
    next
  }
  place <- new.env()
  data(list = parts[2], package = parts[1], envir = place)
  table <- as.data.frame(place[[parts[2]]])
  ordered <- sapply(table, is.ordered)
  category <- !ordered & sapply(table, function(column) is.factor(column) || is.logical(column) || is.character(column))
  table[ordered] <- lapply(table[ordered], as.integer)
  table[category] <- lapply(table[category], as.character)
  names(table)[category] <- paste0(names(table)[category], ":category")
  write.csv(table, file.path(arguments[1], paste0(parts[1], ".", parts[2], ".csv")), row.names = FALSE, na = "")
}
